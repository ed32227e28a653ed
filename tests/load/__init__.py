"""Many runs at once on one server, for as long as one likes: what it holds in the end is what it held at first."""
