import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DMVIZ_COMPILE", "1")  # the same kernels from the first test to the last

import pytest
import torch
from hypothesis import settings

# A gate asks the same questions each time; everywhere else property tests go on looking for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

torch.set_num_threads(1)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The CPU, and CUDA where there is one: the same tests run on both."""
    return request.param
