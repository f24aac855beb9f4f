"""Night after night: figures of stored runs as series, and what changed in them."""
