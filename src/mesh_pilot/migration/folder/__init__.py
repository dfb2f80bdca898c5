"""Where foreign objects come from, and the folder that is written."""
