"""The instrument measured by itself: how often it cries wolf, and how often it sleeps."""
