"""Local worker group: specification, processes, devices, the store, and orphans."""
