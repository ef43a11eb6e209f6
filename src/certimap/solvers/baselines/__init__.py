"""Methods for comparison, for warm starts and for reproduction; `auto` chooses none of them."""
