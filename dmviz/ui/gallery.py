"""The Home gallery: experiments as cards, each a link."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import streamlit as st

ASSETS = Path(__file__).parent.parent.parent / "assets"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    link: str
    steps: int
    look: str

    @property
    def thumbnail(self) -> Path:
        return ASSETS / "thumbnails" / f"{self.name}.webp"


def experiments(path: Path = ASSETS / "experiments.toml") -> tuple[Experiment, ...]:
    """All experiments, in the order written."""
    return tuple(Experiment(**words) for words in tomllib.loads(path.read_text(encoding="utf-8"))["experiment"])


def cards(columns: int = 4) -> None:
    """A card for each experiment: its picture, its title as a link, what to look for."""
    found = experiments()
    for start in range(0, len(found), columns):
        for column, one in zip(st.columns(columns, gap="medium"), found[start : start + columns], strict=False):
            with column, st.container(border=True, height="stretch"):
                if one.thumbnail.exists():
                    st.image(str(one.thumbnail), width="stretch", alt=one.look, link=f"flow?{one.link}")
                st.page_link("pages/flow.py", label=f"**{one.title}**", query_params=dict(parse_qsl(one.link)))
                st.caption(one.look)
