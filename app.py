"""Navigation and page titles, nothing else."""

from pathlib import Path

import streamlit as st

from dmviz.ui import session

st.set_page_config(page_title="dmviz", page_icon=str(Path(__file__).parent / "assets/icon.png"), layout="wide")
session.begin()
st.navigation(
    [
        st.Page("pages/home.py", title="Home", icon=":material/home:", default=True),
        st.Page("pages/flow.py", title="Flow", icon=":material/scatter_plot:"),
        st.Page("pages/arena.py", title="Arena", icon=":material/flag:"),
        st.Page("pages/reference.py", title="Reference", icon=":material/menu_book:"),
        st.Page("pages/benchmarks.py", title="Benchmarks", icon=":material/speed:"),
    ],
    position="top",
).run()
