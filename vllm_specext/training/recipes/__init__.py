"""How each method is trained, as a user asks for it: the keys of recipes, their defaults and bounds."""
