"""The pages of `kstore ui`: what they show, who may see them, and that they change nothing."""
