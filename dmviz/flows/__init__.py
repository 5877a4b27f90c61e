"""A menu of dmviz: every file here that does not start with _ is one entry."""
