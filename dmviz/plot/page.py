"""A run as one html file that works without a network."""

import html as escape
import urllib.parse
from typing import Any

from dmviz.plot import theme, words
from dmviz.plot.animation import show
from dmviz.run import Run

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 0 auto; max-width: 1200px; padding: 16px; background: {background}; color: {text}; font: 14px {font}; }}
table {{ border-collapse: collapse; color: {muted}; }}
td {{ padding: 2px 16px 2px 0; vertical-align: top; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<div role="figure" aria-label="{alt}">
{figure}
</div>
<p>{alt}</p>
<details><summary>What made this run</summary>
<table>
{rows}
</table>
</details>
</body>
</html>
"""


def html(run: Run, dark: bool = False, figure: Any = None) -> str:
    """The figure of `show(run)`, or another one of this run, as a page with everything in it: about 5 MB.

    It opens from a disk, plays, zooms and scrubs, and asks no server for anything.
    """
    chosen = show(run, dark) if figure is None else figure
    look = theme.theme(dark)
    inner = chosen.to_html(
        full_html=False, include_plotlyjs=True, include_mathjax=False, auto_play=False,
        config={"displaylogo": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""},
    )  # fmt: skip
    return _PAGE.format(
        title=escape.escape(words.title(run)), alt=escape.escape(words.alt_text(run)), figure=inner, rows=_rows(run),
        background=look.background, text=look.text, muted=look.muted, font=theme.FONT,
    )  # fmt: skip


def _rows(run: Run) -> str:
    chosen = {"link": urllib.parse.unquote(run.link), "device": run.scene.device, **run.machine}
    pairs = [*chosen.items(), *(("note", note) for note in run.scene.notes)]
    return "\n".join(f"<tr><td>{escape.escape(k)}</td><td>{escape.escape(v)}</td></tr>" for k, v in pairs)
