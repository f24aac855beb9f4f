"""Recording sessions and finished recordings: what stands behind `atom_impl.utils.region_graph`."""
