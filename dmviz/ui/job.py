"""One long piece of work beside the page: it shows how far it is, and can be stopped."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Cancelled(Exception):
    """Raised inside the work, from its own progress call, once someone pressed Cancel."""


class Job:
    """Work in a thread of its own. `work(progress)` is told through `progress(share)` that it goes on."""

    def __init__(self, work: Callable[[Callable[[float], object]], bytes]) -> None:
        self.share, self.result, self.problem = 0.0, b"", ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True, name="dmviz-job")
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def cancel(self) -> None:
        self._stop.set()

    def wait(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _progress(self, share: float) -> None:
        self.share = min(max(float(share), 0.0), 1.0)
        if self._stop.is_set():
            raise Cancelled

    def _run(self, work: Callable[[Callable[[float], object]], bytes]) -> None:
        try:
            self.result = work(self._progress)
            self.share = 1.0
        except Cancelled:
            self.problem = "Cancelled."
        except ValueError as error:
            self.problem = str(error)
        except Exception as error:
            log.exception("a job failed")
            self.problem = f"It failed ({type(error).__name__}); the log has the details."
