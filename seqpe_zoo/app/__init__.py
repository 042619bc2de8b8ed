"""The web app: pick a model, move the context length or the image size, and see what changes."""
