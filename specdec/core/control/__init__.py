"""Who drafts next and how much: the controller behind the proposer `auto`. Plain numbers in, plain choices out."""
