"""One module a component, each with a `run` function that the component's body calls."""
