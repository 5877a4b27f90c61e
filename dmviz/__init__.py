"""dmviz: see distribution matching.

```python
from dmviz import Setup, record, show

run = record(Setup(), steps=200)
show(run)
```
"""

from typing import TYPE_CHECKING, Any

from dmviz.cloud import Cloud, seeded

if TYPE_CHECKING:
    from dmviz.plot import show as show
    from dmviz.run import Frame as Frame
    from dmviz.run import Run as Run
    from dmviz.run import Setup as Setup
    from dmviz.run import from_link as from_link
    from dmviz.run import query as query
    from dmviz.run import record as record
    from dmviz.run import simulate as simulate

__version__ = "0.1.0"
__all__ = ["Cloud", "Frame", "Run", "Setup", "from_link", "query", "record", "seeded", "show", "simulate"]


def __getattr__(name: str) -> Any:
    """Load the loop and the plots when they are asked for, so that `import dmviz` stays quick."""
    import importlib

    if name == "show":
        return importlib.import_module("dmviz.plot").show
    if name in __all__:
        return getattr(importlib.import_module("dmviz.run"), name)
    raise AttributeError(f"dmviz has no {name!r}; it has {', '.join(__all__)}")
