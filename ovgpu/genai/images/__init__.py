"""Images of texts, and of other images, by Stable Diffusion and latent consistency models."""
