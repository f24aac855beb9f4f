"""When a figure in microseconds may be believed: a timer that was checked, on a machine that was watched."""
