"""What the agent tells of its workers."""
