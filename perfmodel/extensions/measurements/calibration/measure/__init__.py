"""Taking measurements on the machine that this runs on."""
