"""Evidence of a hang on this node: what its workers were doing, collected before any of them is killed."""
