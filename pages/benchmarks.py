"""Read what every loss costs, beside its peers, and measure one on this machine."""

import streamlit as st

from benchmarks import every
from benchmarks.goals import board
from dmviz.ui import benchmarks, session

session.through_app()
everything, contests = benchmarks.read(every.RESULTS / "every.json"), benchmarks.read(every.RESULTS / "losses.json")

st.title("What it costs")
if everything:
    st.caption(benchmarks.machine_words(everything))
    benchmarks.every(everything)
else:
    st.info("There are no results of every loss yet: `python -m benchmarks every` measures them, in about an hour.")

st.header("Measure one here")
benchmarks.own(everything, every.here)

st.header("Beside the peers")
if contests:
    benchmarks.peers(contests)
else:
    st.info(
        "There are no results beside peers yet: `python -m benchmarks losses` measures them, in about half an hour."
    )

st.header("Goals")
benchmarks.goals(board(every.RESULTS))
