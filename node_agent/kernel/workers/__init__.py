"""Workers of one node: what each one gets, and the group that starts, watches and stops them."""
