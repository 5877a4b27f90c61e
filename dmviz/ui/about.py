"""The About panel: what the parts of a setup are, from their own docstrings."""

import streamlit as st

from dmviz import docs
from dmviz.run import PARTS, Setup


def panel(setup: Setup) -> None:
    """Formula, parameters, source and code of one part; the BibTeX of all."""
    part = st.segmented_control("Part", list(PARTS), default="loss", format_func=str.capitalize, key="about.part")
    entry = getattr(setup, part or "loss")
    st.markdown(docs.about(entry))
    with st.expander("Code"):
        st.code(docs.code(entry), language="python")
    with st.expander("Sources as BibTeX"):
        st.code(docs.bibtex(setup), language="bibtex")
