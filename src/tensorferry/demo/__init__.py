"""A brain's MRI under a hard memory cap: plain training dies of it, the same training with a budget does not."""
