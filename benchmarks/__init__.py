"""How fast, how exact and how small dmviz is, measured beside other libraries on the same inputs."""
