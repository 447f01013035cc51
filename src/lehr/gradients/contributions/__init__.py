"""The forms in which a parameter's part of every record's gradient is held, none of them larger than it has to be."""
