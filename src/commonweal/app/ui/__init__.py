"""The page `commonweal ui`: runs in a folder, listed, compared and watched. It writes nothing."""
