"""What the last layer converges to, and how far a trained one still is."""

from ncollapse.theory.certificate import Certificate, certify

__all__ = ["Certificate", "certify"]
