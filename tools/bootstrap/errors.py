"""What making an environment has to say: a line as it goes, and the one way in which it ends badly."""


class EnvironmentUnfit(Exception):
    """No environment can be had here as asked; the message says why and what to do. Exit code 4."""


def say(text: str) -> None:
    print(f"env: {text}", flush=True)
