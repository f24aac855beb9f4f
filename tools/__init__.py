"""What a developer's day runs before anything is installed. Standard library only."""
