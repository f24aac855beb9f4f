"""What stands behind the guide's compile modules in `atom_impl.utils`: identities, the artefact cache, dispatch,
checks.
"""
