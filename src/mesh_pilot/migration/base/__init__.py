"""Foreign objects, read field by field; what was found and made of them."""
