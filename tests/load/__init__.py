"""Many runs at once on one server, for any time: at the end it holds no more than at first."""
