"""Local worker group: specification, processes, devices, the store, orphans, warm workers."""
