"""The doctor's checks, sorted by what they look at. Each yields findings about a machine, and none of them raises."""
