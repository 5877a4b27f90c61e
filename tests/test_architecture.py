"""Imports point one way, only ui knows streamlit, only plot knows plotly, and pages stay thin."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dmviz"
FAMILIES = ("shapes", "datasets", "projections", "losses", "flows")
# Each level may import lower levels only; families never import each other.
LEVEL = {
    "cloud": 0, "params": 0, "laws": 0, "items": 1, "protocols": 2, "catalog": 3, "docs": 4, "field": 4,
    **dict.fromkeys(FAMILIES, 5), "run": 6, "store": 7, "arena": 7, "plot": 8, "export": 9, "arena_export": 10,
    "ui": 11, "warm": 12,
}  # fmt: skip
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "app.py", *sorted((ROOT / "pages").glob("*.py"))]


def imported(path: Path) -> list[str]:
    """Modules that a file imports, at any depth of its code."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names.append("relative")
    return names


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "dmviz" and len(parts) > 1 and parts[1] in LEVEL else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if mine == "__init__":
        return  # the front door may name everything, lazily
    assert mine in LEVEL, f"{mine} has no place in the order of imports: give it one here and in the README"
    for module in imported(path):
        assert module != "relative", f"{path.name} uses a relative import"
        other = room(module)
        if other is None or other == mine:
            continue
        assert LEVEL[other] < LEVEL[mine], f"{mine} must not import {module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_ui_imports_streamlit_and_only_plot_imports_plotly(path: Path) -> None:
    mine = path.relative_to(PACKAGE).parts[0]
    heads = {module.split(".")[0] for module in imported(path)}
    assert "streamlit" not in heads or mine == "ui"
    assert "plotly" not in heads or mine == "plot"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_pages_are_thin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    heads = {module.split(".")[0] for module in imported(path)}
    assert len(text.splitlines()) <= 150
    assert not {"torch", "numpy"} & heads
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(text)))


def test_the_file_to_read_first_is_short() -> None:
    assert len((PACKAGE / "protocols.py").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_uses_torchs_global_generator(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if of_torch and name in {"randn", "rand", "randint", "randperm", "multinomial", "normal", "bernoulli"}:
                assert any(k.arg == "generator" for k in node.keywords), f"{path.name}:{node.lineno} draws without rng"
            assert name not in {"manual_seed"} or path.name == "cloud.py", f"{path.name}:{node.lineno} seeds globally"
