"""A script with LlamaIndex, which the program `llama_index` runs: texts, streams, chats, vectors, and an index."""

from __future__ import annotations

import json
import sys

from llama_index.core import VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import TextNode
from llama_index.embeddings.openvino_genai import OpenVINOGENAIEmbedding
from llama_index.llms.openvino_genai import OpenVINOGenAILLM

decoder, encoder, device = sys.argv[1:]
SENTENCES = ["The sky is blue.", "A red fox jumps over a dog.", "Paris is the capital of France."]

llm = OpenVINOGenAILLM(model_path=decoder, device=device)
llm.config.max_new_tokens = 30
messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Why is the sky blue?")]
embedding = OpenVINOGENAIEmbedding(model_path=encoder, device=device)
index = VectorStoreIndex([TextNode(text=sentence) for sentence in SENTENCES], embed_model=embedding)
found = index.as_retriever(similarity_top_k=3).retrieve("a fox")
results = {
    "complete": llm.complete("The fox").text,
    "stream": [part.delta for part in llm.stream_complete("The fox")],
    "chat": llm.chat(messages).message.content,
    "stream of a chat": [part.delta for part in llm.stream_chat(messages)],
    "query": embedding.get_query_embedding("a fox"),
    "texts": embedding.get_text_embedding_batch(SENTENCES),
    "retrieved": [node.text for node in found],
    "scores": [node.score for node in found],
    "answer": str(index.as_query_engine(llm=llm, similarity_top_k=1).query("Which city is a capital?")),
}
print(json.dumps(results))
