"""See what acceleration makes of three programs, and why each result stays the same.

Needs: pip install 'rag-accel[langchain-classic]'   Run: python cookbook/03_what_the_passes_do.py
To renew what the tests expect: add `> cookbook/03_what_the_passes_do.txt`
"""

from dataclasses import replace

from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.testing import FAKE_PROFILE, FakeEngine
from rag_accel.workflows import advanced_document_qa

FACTS = ["The bridge opened in 1932.", "The ferry takes nine minutes.", "The tram is green."]
MODEL = FakeListChatModel(responses=["In 1932."])
INPUTS = {"input": "When did the bridge open?"}


def searching(texts):
    """Return a retriever over a small store; any other takes its place."""
    store = InMemoryVectorStore.from_texts(texts, DeterministicFakeEmbedding(size=8), ids=texts)
    return (lambda values: values["input"]) | store.as_retriever(search_kwargs={"k": 2})


def retrieval_chain():
    """Return a chain that searches and guesses a passage, and answers with both."""
    guess = ChatPromptTemplate.from_template("A passage on {input}") | MODEL | StrOutputParser()
    prompt = ChatPromptTemplate.from_template("{context}\n\n{guess}\n\n{input}")
    answer = create_stuff_documents_chain(MODEL, prompt)
    return RunnablePassthrough.assign(context=searching(FACTS), guess=guess).assign(answer=answer)


def ensemble_chain():
    """Return a chain whose retriever asks two others and fuses what they find."""
    both = EnsembleRetriever(retrievers=[searching(FACTS), searching(FACTS[1:])])
    prompt = ChatPromptTemplate.from_template("{context}")
    return {"context": both} | prompt | MODEL | StrOutputParser()


def owned(*kinds):
    """Return a fake engine that is owned: its plan is the one real engines of these kinds get."""
    able = frozenset(kind for kind in FAKE_PROFILE.kinds if kind in kinds)
    return FakeEngine(replace(FAKE_PROFILE, kinds=able))


def of_langchain(chain, why):
    """Print a chain intercepted and translated, and compare its results."""
    for title, mode in (("Before: intercepted", "auto"), ("After: translated", "translate")):
        with Accelerator(threads=2, mode=mode) as accelerator:  # 2: to print the same everywhere
            fast = accelerate(chain, accelerator=accelerator)
            same = fast.invoke(INPUTS) == chain.invoke(INPUTS)
            print(f"\n{title}. The same result: {same}.\n\n{fast.explain()}")
    print(f"\n{why}\n")


def of_ragraph(graph, why):
    """Print the primitives of a workflow before and after the passes, and compare its results."""
    answers = []
    for title, passes, stage in (("Before", "none", "p-graph"), ("After", "all", "e-graph")):
        engines = {"llm": owned("PREFILLING", "DECODING"), "embedder": owned("EMBEDDING")}
        engines |= {"index": owned("SEARCHING"), "reranker": owned("RERANKING")}
        with Accelerator(**engines, threads=2, passes=passes) as accelerator:
            answers.append(accelerator.run(graph, **INPUTS))
            print(f"\n{title} the passes. The same result: {answers[0] == answers[-1]}.\n")
            print(accelerator.explain(graph, stage))
    print(f"\n{why}")


WHY = (
    """Why: context and guess are branches of one assign, so they run side by side. Each part is
the chain's own runnable, called as LangChain would, and the join keeps the order of the keys.""",
    """Why: a straight line needs no scheduler in between. What is gained is in the ensemble: its
searches run side by side, and its own fusion gets the results in the order of its retrievers.""",
    """Why: what each pass changed stands under `passes:`. It changes when primitives start and how
they are cut, not what they read: values are looked up by name and kept in the order of stages.""",
)


def main():
    """Explain three programs, and run each both ways."""
    print("1. A retrieval chain of LangChain")
    of_langchain(retrieval_chain(), WHY[0])
    print("2. An ensemble of two retrievers")
    of_langchain(ensemble_chain(), WHY[1])
    print("3. Question answering over documents, a RAGraph")
    of_ragraph(advanced_document_qa(num_queries=2, synthesis="stuff"), WHY[2])


if __name__ == "__main__":
    main()
