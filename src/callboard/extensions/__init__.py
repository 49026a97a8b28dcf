"""Extensions of the protocol that come with Callboard."""
