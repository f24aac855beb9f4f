"""How long a server waits for its first step at each level, with a cold and with a warm cache, in fresh processes."""
