"""`--preload`: workers that are forked from a process which has imported their modules already."""
