"""Every scenario, with a death at every commit and at every boundary of an effect."""
