"""What dmviz is, and experiments to begin with."""

import streamlit as st

from dmviz.ui import gallery, session

session.through_app()

st.title("See distribution matching")
st.markdown(
    "Pick where particles start, where they should go, and a loss that pulls them. Press play and watch one "
    "distribution become the other, with every number computed live on this machine."
)
st.page_link("pages/flow.py", label="**Start with your own setup**", icon=":material/play_circle:")
st.subheader("Experiments, one click each")
gallery.cards()
