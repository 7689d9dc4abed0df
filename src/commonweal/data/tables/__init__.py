"""Tables of any length: their files, what their columns hold, and the features made of them."""
