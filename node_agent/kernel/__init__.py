"""What every agent does: it joins, polls, starts workers, supervises them and reports. It names no feature."""
