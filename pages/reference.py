"""Read every entry of every menu: formula, parameters, laws, cost, code, sources."""

import streamlit as st

from dmviz.ui import reference, session

session.through_app()
reference.arrive()
with st.container(key="reference-columns"):
    choices, page = st.columns([1, 2.6], gap="large")
with page:
    now = reference.chosen()
with choices:
    found = reference.filters()
    reference.listed(found, now)
with page:
    if now is None:
        reference.overview(found)
    else:
        reference.shown(now)
        st.caption(f"Link of this entry: `{reference.link(now)}`")
