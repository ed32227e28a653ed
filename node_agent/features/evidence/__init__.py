"""Evidence of a hang on this node: what its workers were doing, gathered before anything is killed."""
