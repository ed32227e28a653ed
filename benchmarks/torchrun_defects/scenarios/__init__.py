"""One module a defect, each with `observe(stage, launcher) -> Observation`."""
